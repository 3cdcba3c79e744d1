"""An experiment as a document to hand on: plain data in, text out."""
