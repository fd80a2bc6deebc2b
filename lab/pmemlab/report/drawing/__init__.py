"""Figures as SVG, by matplotlib: to be read on a phone, in black and white and on paper.

Each is drawn twice, for a wide page and for a narrow one, at the same size of letters.
"""
