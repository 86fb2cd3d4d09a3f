"""Draws scenes as RGB pictures, with smooth edges, from formulas: no fonts, no files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from tools.demo_vision.scenes import COLORS, DIGITS, Scene, Thing

SIZE = 64
"""Width and height in pixels."""
COLOR_NOISE = 14
"""Largest change of a colour's channels, of 255."""
STROKE_WIDTHS = (0.15, 0.24)
"""Smallest and largest half width of a digit's strokes, in units of its radius."""
Picture = NDArray[np.uint8]
Plane = NDArray[np.float64]
_STROKES = {  # of a digit in a box from (-1, -1) to (1, 1): polylines, y downwards
    "0": "-.5,-1 .5,-1 .8,-.5 .8,.5 .5,1 -.5,1 -.8,.5 -.8,-.5 -.5,-1",
    "1": "-.5,-.6 .1,-1 .1,1",
    "2": "-.8,-.6 -.4,-1 .4,-1 .8,-.6 .8,-.2 -.8,1 .8,1",
    "3": "-.8,-1 .7,-1 0,-.2 .5,-.1 .8,.3 .7,.8 .3,1 -.4,1 -.8,.7",
    "4": ".4,1 .4,-1 -.8,.4 .9,.4",
    "5": ".8,-1 -.7,-1 -.8,-.1 .3,-.2 .8,.2 .7,.8 .3,1 -.4,1 -.8,.8",
    "6": ".5,-1 -.2,-.8 -.7,-.1 -.8,.5 -.4,1 .4,1 .8,.5 .4,0 -.3,0 -.75,.3",
    "7": "-.8,-1 .8,-1 -.2,1",
    "8": "0,-.1 .6,-.3 .65,-.8 .3,-1 -.3,-1 -.65,-.8 -.6,-.3 0,-.1 .7,.2 .8,.7 .4,1 -.4,1 "
    "-.8,.7 -.7,.2 0,-.1",
    "9": ".75,-.3 .3,0 -.4,0 -.8,-.5 -.4,-1 .4,-1 .8,-.5 .7,.1 .2,.8 -.5,1",
}


def draw(scene: Scene, rng: Random) -> Picture:
    """Draw a scene as SIZE x SIZE pixels in RGB; the generator chooses its noise."""
    picture = _background(_shade(scene.background, rng))
    for thing in scene.things:
        width = rng.uniform(*STROKE_WIDTHS)
        _add(picture, thing, width, _shade(thing.color, rng))
    grain = np.random.default_rng(rng.getrandbits(32)).normal(0, 3, picture.shape)
    return np.clip(picture + grain + 0.5, 0, 255).astype(np.uint8)


def draw_plain(scene: Scene, size: int = SIZE) -> Picture:
    """Draw a scene as size x size pixels without noise."""
    picture = _background(np.array(COLORS[scene.background]), size)
    for thing in scene.things:
        _add(picture, thing, STROKE_WIDTHS[0], np.array(COLORS[thing.color]))
    return np.rint(picture).astype(np.uint8)


def _background(color: NDArray[np.float64], size: int = SIZE) -> NDArray[np.float64]:
    picture = np.empty((size, size, 3))
    picture[:] = color
    return picture


def _add(
    picture: NDArray[np.float64], thing: Thing, width: float, color: NDArray[np.float64]
) -> None:
    """Draw a thing; `width` is half that of a digit's strokes, in units of its radius."""
    size = len(picture)
    axis = (np.arange(size) + 0.5) / size
    x, y = (axis - thing.x)[None, :] / thing.radius, (axis - thing.y)[:, None] / thing.radius
    outside = _distance(thing, x, y, width) * thing.radius * size
    share = np.clip(0.5 - outside, 0, 1)[..., None]
    picture += share * (color - picture)


def _shade(color: str, rng: Random) -> NDArray[np.float64]:
    return np.array([channel + rng.uniform(-COLOR_NOISE, COLOR_NOISE) for channel in COLORS[color]])


def _distance(thing: Thing, x: Plane, y: Plane, width: float) -> Plane:
    """Distance of the points from the thing, negative inside, in units of its radius."""
    if thing.shape in DIGITS:
        return _polyline_distance(_STROKES[thing.shape], x, y) - width
    return _SHAPES[thing.shape](x, y)


def _polyline_distance(points: str, x: Plane, y: Plane) -> Plane:
    ends = [_corner(point) for point in points.split()]
    nearest = np.full(np.broadcast(x, y).shape, np.inf)
    for (ax, ay), (bx, by) in pairwise(ends):
        along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
        along = np.clip(along, 0, 1)
        distance = np.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay))
        nearest = np.minimum(nearest, distance)
    return nearest


def _corner(point: str) -> tuple[float, float]:
    """A corner of a stroke; digits are three fifths as wide as high."""
    x, y = map(float, point.split(","))
    return 0.51 * x, 0.85 * y


def _circle(x: Plane, y: Plane) -> Plane:
    return np.hypot(x, y) - 0.95


def _ring(x: Plane, y: Plane) -> Plane:
    return np.abs(np.hypot(x, y) - 0.72) - 0.22


def _square(x: Plane, y: Plane) -> Plane:
    return np.maximum(np.abs(x), np.abs(y)) - 0.85


def _triangle(x: Plane, y: Plane) -> Plane:
    return np.maximum(y - 0.75, 0.87 * np.abs(x) - 0.5 * (y + 0.95))


def _star(x: Plane, y: Plane) -> Plane:
    angle = np.arctan2(x, -y)
    step = 2 * np.pi / 5
    inner = np.abs((angle + step / 2) % step - step / 2)
    # The edge from the outer corner at radius 1 to the inner one at radius 0.42.
    radius = np.hypot(x, y)
    px, py = radius * np.cos(inner) - 1.0, radius * np.sin(inner)
    ex, ey = 0.42 * np.cos(step / 2) - 1.0, 0.42 * np.sin(step / 2)
    outside: Plane = (px * ey - py * ex) / np.hypot(ex, ey)
    return outside


def _heart(x: Plane, y: Plane) -> Plane:
    u, v = np.abs(x) * 1.15, -y * 1.15 + 0.25
    level = (u * u + v * v - 1) ** 3 - u * u * v**3
    # The level's slope differs along the edge; its cube root is close to a distance.
    distance: Plane = 0.45 * np.cbrt(level)
    return distance


_SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
}
