"""What people type or choose -> values, with errors that belong to a field."""
