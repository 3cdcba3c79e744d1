"""Which numbers of a text are read: their places, events, and what readers leave unread."""
