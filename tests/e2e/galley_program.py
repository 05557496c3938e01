"""Runs the real binary for the end-to-end tests, with nothing of the caller's settings."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("GALLEY_BINARY", str(SOURCE / "build/release/bin/galley"))
# Built with sanitizers (CMake says which): everything takes longer, and what they keep of
# memory that was given back, or reserve of addresses, is not the program's.
SANITIZED = bool(os.environ.get("GALLEY_SANITIZE"))
PATIENCE = 10 if SANITIZED else 1
# A tiny model with random weights: fast, and every mechanism is in it.
MODEL = str(SOURCE / "tests/golden/g1-micro-text/checkpoint")


class GalleyTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="galley-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def environment(self, **extra):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GALLEY_")}
        return clean | {"HOME": str(self.folder), "XDG_CONFIG_HOME": ""} | extra

    def galley(self, *arguments, stdin=b"", env=None, timeout=120):
        return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True,
                              env=self.environment(**(env or {})), cwd=self.folder,
                              timeout=timeout * PATIENCE)

    def start(self, *arguments):
        process = subprocess.Popen([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=self.environment(), cwd=self.folder)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()

    def assert_fails(self, result, code, *words):
        """One line on stderr that says what and where, nothing on stdout."""
        message = result.stderr.decode()
        self.assertEqual(result.returncode, code, message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(message.count("\n"), 1, message)
        self.assertTrue(message.startswith("galley"), message)
        for word in words:
            self.assertIn(word, message)
