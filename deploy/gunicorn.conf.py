# ruff: noqa: N999  (gunicorn looks for this name)
"""How the web server runs. gunicorn reads this file from the directory that it is started in."""

from labsite.logs import logging_config

bind = ["0.0.0.0:8000", "0.0.0.0:9000"]  # the site, and the metrics (LAB_METRICS_PORT), which nobody else may see
workers = 2
threads = 4  # a request that opens a session waits up to 0.7 s for the cluster: others go on meanwhile
timeout = 30
graceful_timeout = 30  # what runs when SIGTERM comes may end
keepalive = 75  # longer than proxies keep their connections (60 s): the one that closes first must not be this one
worker_tmp_dir = "/tmp"  # noqa: S108  (the only place that can be written to)
control_socket_disable = True  # it would need a home directory
logconfig_dict = logging_config(json=True)
