"""Constants fitted to measurements, and how far predictions may be off."""
