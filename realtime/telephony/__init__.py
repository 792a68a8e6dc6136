"""Telephone calls over the media-stream WebSocket that telephony providers open (Twilio's shape)."""
