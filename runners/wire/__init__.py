"""Messages between server and node, their signatures and keys, and the broker that carries them."""
