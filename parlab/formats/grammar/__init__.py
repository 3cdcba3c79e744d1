"""What all readers share: prefixes, numbers, units, names, cells and step lines."""
