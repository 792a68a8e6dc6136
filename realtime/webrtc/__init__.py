"""WebRTC calls: signalling, the peer connection, its data channel and its media. Needs ``duologue[webrtc]``."""
