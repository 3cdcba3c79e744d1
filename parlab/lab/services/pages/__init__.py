"""What people arrange on the pages: columns of lists, saved views, dashboards; and when they last visited."""
