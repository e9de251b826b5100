"""How long the certificates of a server are valid yet, for Prometheus."""

import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from fedlm.fedlm_client.errors import KeysError
from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, SERVER, read_certificate


class CertificateDays:
    """A Prometheus collector of a folder of keys, whose files are read each time."""

    def __init__(self, keys: Path):
        self._keys = keys

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector.collect`."""
        days = GaugeMetricFamily("fedlm_certificate_days", "Days until a certificate expires.", labels=["of"])
        for of, name in (("server", f"{SERVER}.pem"), ("authority", AUTHORITY_FILE)):
            try:
                ends = read_certificate(self._keys / name).not_valid_after_utc.timestamp()
            except KeysError:
                # That of a file which cannot be read is not shown: its absence is worth an alarm too.
                continue
            days.add_metric([of], (ends - time.time()) / 86_400)
        yield days
