"""The browser's pages: a view calls one read and renders one template."""
