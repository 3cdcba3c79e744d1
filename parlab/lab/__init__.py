"""What is planned and what ran: experiments, configurations, runs, findings, reports, nodes."""
