"""What is trained on what: model, batch, layout and cluster."""
