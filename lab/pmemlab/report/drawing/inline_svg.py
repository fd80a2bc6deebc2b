"""Makes an SVG file fit to stand in an HTML page."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

__all__ = ["inline"]

_SVG: Final = "http://www.w3.org/2000/svg"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_OWN_FONT: Final = re.compile(r"font-family: [^;]*;? *")
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")


def inline(svg: str, name: str, alt: str, css_class: str) -> str:
    """Returns the SVG element for a page.

    Its ids begin with `name`, since ids are unique in the page; ids without a reference are
    removed. The page's style gives the size and the font, and a screen reader says `alt` instead of
    the letters.
    """
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    used = set(_REFERENCE.findall(svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    for element in root.iter():
        element_id = element.attrib.pop("id", None)
        if element_id in used:
            element.set("id", f"{name}-{element_id}")
        element.set("style", _OWN_FONT.sub("", element.get("style", "")))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        if not element.get("style"):
            del element.attrib["style"]
        for attribute, value in list(element.attrib.items()):
            if attribute == _LINK:
                del element.attrib[attribute]
                element.set("href", f"#{name}-{value.removeprefix('#')}")
            elif "url(#" in value:
                element.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("class", css_class)
    root.set("role", "img")
    root.set("aria-label", alt)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")
