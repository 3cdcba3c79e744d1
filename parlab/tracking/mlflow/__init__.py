"""MLflow's tracking protocol (REST API 2.0, as client 3.x speaks it) over parlab's runs.

Source: MLflow's REST API reference and the traffic of mlflow 3.17. An MLflow experiment is an experiment here, its ID
the primary key; ID "0" is the experiment `Default`, which is created when a client first uses it.
"""
