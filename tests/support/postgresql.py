"""A PostgreSQL server of one's own, for tests and benchmarks."""

import os
import pwd
import subprocess


class PostgreSQL:
    """A server in a temporary folder, reached by a socket there."""

    def __init__(self, folder):
        self.folder, self._databases = folder, 0
        # PostgreSQL refuses to run as root.
        self._user = ["setpriv", f"--reuid={_nobody()}", f"--regid={_nobody()}", "--clear-groups"]
        if os.geteuid():
            self._user = []
        else:
            os.chown(folder, pwd.getpwnam(_nobody()).pw_uid, -1)
        self._command(
            "initdb", "-D", folder / "data", "-U", "fedlm", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )

    def _command(self, *words):
        done = subprocess.run([*self._user, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, fsync="off"):
        options = f"-c listen_addresses='' -c fsync={fsync} -c unix_socket_directories={self.folder}"
        self._command("pg_ctl", "-D", self.folder / "data", "-w", "-l", self.folder / "log", "-o", options, "start")

    def stop(self, mode="immediate"):
        self._command("pg_ctl", "-D", self.folder / "data", "-w", "-m", mode, "stop")

    def url(self):
        """The URL of a new database."""
        import psycopg

        self._databases += 1
        with psycopg.connect(f"host={self.folder} user=fedlm dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE test{self._databases}")
        return f"postgresql://fedlm@/test{self._databases}?host={self.folder}"


def _nobody():
    """Name the user that PostgreSQL runs as where the tests run as root."""
    return "postgres" if any(user.pw_name == "postgres" for user in pwd.getpwall()) else "nobody"
