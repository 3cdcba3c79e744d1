"""Operations on experiments, configs, runs and reports; every state transition goes through a service."""
