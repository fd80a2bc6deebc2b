"""Figures as SVG, drawn by matplotlib, for reading on a phone, in black and white and on paper.

Each figure is drawn twice, for a wide page and for a narrow one, with letters of the same size.
"""
