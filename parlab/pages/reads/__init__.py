"""What pages read: one module per part of a page, plain values out."""
