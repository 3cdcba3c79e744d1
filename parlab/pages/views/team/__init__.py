"""Home, account, nodes, watches, reports, dashboards."""
