"""How pieces cross from one stage to the next: by reference, or as bytes in shared memory."""
