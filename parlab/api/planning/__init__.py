"""Plans, questions, simulations and studies over HTTP."""
