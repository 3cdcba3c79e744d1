"""Who may do what: groups, logins, tokens, keys of nodes, the audit log."""
