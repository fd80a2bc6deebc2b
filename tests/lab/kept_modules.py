"""What runs inside pytester import: pytester forgets the modules that only such a run imports, and
the next run would take a tenth of a second to import them again.
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

with contextlib.suppress(ImportError):  # it is of an extra
    import jinja2  # noqa: F401
