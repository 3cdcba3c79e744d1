"""Plans, questions, simulations and studies."""
