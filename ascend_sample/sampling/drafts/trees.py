"""Drafts that branch: a place may be followed by several, and the token that is drawn there says by which."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.drafts.places import NO_TOKEN, Ids, PlacesLayout, requests_of_places
from ascend_sample.sampling.rows.parameters import RowStatus
from ascend_sample.sampling.rows.table import to_device


class Followed(NamedTuple):
    """The way through each tree, all of [requests, most + 1].

    Attributes:
        token_ids: int64, the tokens that were drawn on the way, then -1.
        accepted: int64 [requests], how many drafts are on it.
        status: int8, of these tokens.
        path: int64, the numbers of the places where they were drawn, then -1.
    """

    token_ids: Tensor
    accepted: Tensor
    status: Tensor
    path: Tensor


class TreeLayout(PlacesLayout):
    """Where places are that follow one another as trees.

    Args:
        counts: int64 [requests], how many drafts each has.
        parents: int64 [places], the number of the place that each follows among its request's; -1 for the first.
        device: of the drafts.

    Attributes:
        parents: as they were given.
    """

    def __init__(self, counts: Ids, parents: Ids, device: torch.device) -> None:
        self.parents = parents
        request, starts = requests_of_places(counts), numpy.cumsum(counts + 1) - counts - 1
        everyone = numpy.arange(len(parents))
        beyond, end = int(counts.sum()), len(parents)  # numbers that no draft and no place has
        draft = numpy.where(parents < 0, beyond, everyone - request - 1)
        above = numpy.where(parents < 0, everyone, starts[request] + parents)
        levels, place = [], everyone
        while (draft[place] < beyond).any():
            levels.append(draft[place])
            place = above[place]
        before = numpy.stack(levels, 1) if levels else numpy.empty((end, 0), numpy.int64)
        super().__init__(counts, (before < beyond).sum(1), before, device)

        followers = numpy.flatnonzero(parents >= 0)
        followers = followers[numpy.argsort(above[followers], kind="stable")]
        each = numpy.bincount(above[followers], minlength=end)
        number = numpy.arange(len(followers)) - numpy.repeat(numpy.cumsum(each) - each, each)
        children = numpy.full((end + 1, max(1, int(each.max(initial=0)))), end)  # a row more, for what no place is
        children[above[followers], number] = followers
        drafts = numpy.append(draft, 0)[children]  # where no place is, any: its end is there however it compares
        self._number = everyone - starts[request]
        parts = (drafts.ravel(), children.ravel(), numpy.append(self._number, NO_TOKEN), starts)
        sent = to_device(numpy.concatenate(parts), device).split([len(part) for part in parts])
        self._drafts, self._children, self._numbers, self._roots = sent
        self._children = self._children.view(children.shape)
        self._end = torch.full((1,), end, dtype=torch.int64, device=device)
        self._no_status = torch.full((1,), RowStatus.OK, dtype=torch.int8, device=device)

    def followed(self, drawn_ids: Tensor, status: Tensor, draft_ids: Tensor) -> Followed:
        """Follows the first of a place's drafts that is the token drawn there, from the root on.

        Args:
            drawn_ids: int64 [places], what places have; of those that are not reached, anything.
            status: int8 [places].
            draft_ids: int64 [drafts].
        """
        drawn, way = pad(drawn_ids, (0, 1), value=NO_TOKEN), [self._roots]
        if self.most:
            drafts = draft_ids.index_select(0, self._drafts).view_as(self._children)
            following = torch.where(drafts == drawn.unsqueeze(1), self._children, self._end).amin(1)
        for _ in range(self.most):
            way.append(following.index_select(0, way[-1]))
        cells = torch.stack(way, 1)
        of_cells = (each.index_select(0, cells.view(-1)).view_as(cells) for each in (drawn, self._numbers))
        token_ids, path = of_cells
        statuses = torch.cat((status, self._no_status)).index_select(0, cells.view(-1)).view_as(cells)
        return Followed(token_ids, (path >= 0).sum(1).sub_(1), statuses, path)

    def is_off(self, path: Tensor) -> Tensor:
        """Returns which places are not on the ways that `followed` has found, bool [places].

        Args:
            path: int64 [requests, most + 1], its result.
        """
        end = len(self.column)
        places = (path + self._roots.unsqueeze(1)).masked_fill_(path < 0, end).view(-1)
        marks = torch.zeros(end + 1, dtype=torch.int8, device=path.device)
        return marks.scatter_(0, places, 1)[:end] == 0

    def reached(self, drawn_ids: Tensor, status: Tensor, accepted: Tensor) -> Followed:
        """Returns the same on a CPU, whose kernel follows the trees itself and draws nowhere else.

        Args:
            drawn_ids: int64 [places], -1 for those that are not reached.
            status: int8 [places].
            accepted: int64 [requests], how many drafts are on the way.
        """
        drawn = drawn_ids.numpy()
        on_the_way = numpy.flatnonzero(drawn != NO_TOKEN)  # of each request in order: places follow earlier ones
        is_there = numpy.arange(self.most + 1) <= accepted.numpy()[:, None]

        def table(of_places: NDArray[Any], beyond: int) -> Tensor:
            cells = numpy.full(is_there.shape, beyond, of_places.dtype)
            cells[is_there] = of_places[on_the_way]
            return torch.from_numpy(cells)

        statuses = table(status.numpy(), RowStatus.OK)
        return Followed(table(drawn, NO_TOKEN), accepted, statuses, table(self._number, NO_TOKEN))
