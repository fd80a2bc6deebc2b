"""Imports the modules that pytest runs inside pytester import. pytester unloads modules that only
an inner run imported, and importing them again would cost each run a tenth of a second.
"""

import contextlib

import pydantic.main
import pydantic.type_adapter  # noqa: F401
import rich.console
import rich.styled  # noqa: F401
import yaml  # noqa: F401

import pmemlab.report.command
import pmemlab.scenarios.reading
import pmemlab.scenarios.xdist  # noqa: F401

with contextlib.suppress(ImportError):  # belongs to an extra
    import jinja2  # noqa: F401
