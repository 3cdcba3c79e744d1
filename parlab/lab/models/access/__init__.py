"""Who may do what: tokens, logins, keys of nodes, refused messages, the audit log."""
