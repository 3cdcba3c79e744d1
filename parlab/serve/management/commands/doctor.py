"""Check an installation and say what to do."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from parlab.serve.doctor import examine, mend

_MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


class Command(BaseCommand):
    help = "Check settings, database, Redis, clock, disk, proxy, logins, mail, storage, nodes, workers, versions."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="write a list of objects")
        parser.add_argument("--mend", action="store_true", help="first change what can be changed here")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["mend"]:
            self.stderr.write(f"changed the autovacuum of {mend()} partitions")
        findings = list(examine())
        if options["json"]:
            self.stdout.write(json.dumps([finding._asdict() for finding in findings], indent=2))
        for finding in [] if options["json"] else findings:
            remedy = f"\n{'':19}-> {finding.remedy}" if finding.remedy else ""
            self.stdout.write(f"{_MARKS[finding.level]} {finding.check:10} {finding.text}{remedy}")
        if any(finding.level == "error" for finding in findings):
            sys.exit(1)
