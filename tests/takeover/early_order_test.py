"""The order in which collectives start early: random graphs, and estimated times."""

import dataclasses
import random

import numpy as np
from absl.testing import absltest, parameterized

from jax_cxl._takeover.schedule import order
from jax_cxl._takeover.schedule.order import Node

MIB = 1 << 20


def violations(nodes, positions):
    """Returns the pairs of instructions that are in the wrong order, or are missing."""
    place = {position: i for i, position in enumerate(positions)}
    return [
        (before, position)
        for position, node in enumerate(nodes)
        for before in node.before
        if place.get(before, len(nodes)) >= place.get(position, -1)
    ]


def in_use(nodes, reads, positions):
    """Returns the bytes in use at each place of an order: results, until their last readers."""
    last = {}
    for place, position in enumerate(positions):
        last |= dict.fromkeys((position, *reads[position]), place)
    change = np.zeros(len(nodes) + 1, np.int64)
    for place, position in enumerate(positions):
        change[place] += nodes[position].size
        change[last[position] + 1] -= nodes[position].size
    return np.cumsum(change)[:-1]


def started(node, done, seconds, movable=True):
    """Returns a node as the start of a collective."""
    return dataclasses.replace(node, done=done, busy=seconds, movable=movable)


def random_graph(seed, count=80):
    """Returns random instructions in a valid order, with random collectives among them.

    Also returns, for each instruction, the instructions whose results it reads.
    """
    draw = random.Random(seed)
    nodes, reads, open_starts = [], [], []
    owners = []  # For each instruction, those whose memory its result has.

    def finish(start, before):
        nodes[start] = started(
            nodes[start], len(nodes), draw.uniform(1e-5, 2e-3), draw.random() < 0.8
        )
        nodes.append(Node((start, *before)))
        reads.append((start, *reads[start]))
        owners.append({start})

    while len(nodes) < count:
        here = len(nodes)
        before = {draw.randrange(here) for _ in range(draw.randint(0, 3)) if here}
        before -= {*open_starts}
        kind = draw.random()
        if kind < 0.2 and here:
            operand = draw.choice(sorted(before) or [0])
            if operand in open_starts:
                continue
            nodes.append(Node((operand,), size=draw.choice((1, 8)) * MIB))
            reads.append(tuple(owners[operand]))
            open_starts.append(here)
            owners.append({here})
        elif kind < 0.45 and open_starts:
            finish(open_starts.pop(draw.randrange(len(open_starts))), before)
        else:
            view = draw.random() < 0.2 and bool(before)
            size = 0 if view else draw.randrange(3) * MIB
            movable = view or draw.random() < 0.6
            seconds = 0.0 if view else draw.uniform(0, 1e-3)
            below = set().union(*(owners[b] for b in before))
            nodes.append(Node(tuple(sorted(before)), seconds, size, movable))
            reads.append(() if view else tuple(below))
            owners.append(below if view else {here})
    for start in open_starts:
        finish(start, ())
    last = range(len(nodes) - 5, len(nodes))
    nodes.append(Node(tuple(last)))
    reads.append(tuple(set().union(*(owners[i] for i in last))))
    return nodes, reads


class PlacedTest(absltest.TestCase):
    def test_starts_that_may_not_move_stay(self):
        for movable in (False, True):
            nodes = [
                Node(size=MIB, movable=True),
                Node((0,), 1e-3, MIB),
                started(Node((0,), size=MIB), 3, 1e-4, movable),
                Node((2,)),
                started(Node((3,), size=MIB), 5, 1e-4),
                Node((4,)),
                Node((1, 5)),
            ]
            found = order.early(nodes, 100 * MIB)[0].positions
            self.assertEqual(found.index(2) < found.index(1), movable, found)


class RandomTest(parameterized.TestCase):
    @parameterized.parameters(range(60))
    def test_order(self, seed):
        nodes, _ = random_graph(seed)
        self.assertEmpty(violations(nodes, range(len(nodes))))
        for limit in (0, 4 * MIB, 1 << 40):
            found = order.early(nodes, limit)[0].positions
            self.assertCountEqual(found, range(len(nodes)))
            self.assertEmpty(violations(nodes, found))
            self.assertEqual(found, order.early(nodes, limit)[0].positions)
            # Instructions that must not move keep their order.
            stay = [i for i in found if not nodes[i].movable]
            self.assertEqual(stay, sorted(stay))

    @parameterized.parameters(range(60))
    def test_memory(self, seed):
        nodes, reads = random_graph(seed)
        most = in_use(nodes, reads, range(len(nodes))).max()
        for limit in (0, 4 * MIB, 1 << 40):
            found, added = order.early(nodes, limit)
            self.assertLessEqual(in_use(nodes, reads, found.positions).max(), most + added)
            self.assertLessEqual(added, limit)

    def test_results_count(self):
        """Without them, an order may take more bytes than it says."""
        wrong = 0
        for seed in range(60):
            nodes, reads = random_graph(seed)
            blind = [dataclasses.replace(node, size=0) for node in nodes]
            found, added = order.early(blind, 4 * MIB)
            most = in_use(nodes, reads, range(len(nodes))).max()
            wrong += in_use(nodes, reads, found.positions).max() > most + added
        self.assertGreater(wrong, 0)

    def test_a_start_before_its_operand_is_found(self):
        for seed in range(20):
            nodes, _ = random_graph(seed)
            positions = order.early(nodes, MIB)[0].positions
            start = next(i for i, node in enumerate(nodes) if node.done is not None)
            positions.remove(start)
            positions.insert(positions.index(nodes[start].before[0]), start)
            self.assertIn((nodes[start].before[0], start), violations(nodes, positions))

    def test_an_order_that_ignores_operands_is_found(self):
        wrong = 0
        for seed in range(20):
            nodes, _ = random_graph(seed)
            free = [
                node if node.done is None else dataclasses.replace(node, before=())
                for node in nodes
            ]
            wrong += bool(violations(nodes, order.early(free, 1 << 40)[0].positions))
        self.assertGreater(wrong, 10)


def layers(count, prefetched):
    """Returns layers, each of which needs a gathered array.

    Args:
      count: number of layers.
      prefetched: whether the gather for a layer starts before the previous layer; otherwise it
        starts after that layer.
    """
    nodes, layer = [Node(movable=True)], []
    for _ in range(count):
        start, done = len(nodes), len(nodes) + 1
        if prefetched and layer:
            # The start changes places with the layer before it.
            nodes.append(nodes[-1])
            start -= 1
            nodes[start] = Node()
            layer = [start + 1]
        else:
            nodes.append(Node())
        nodes[start] = started(Node((0,), size=10 * MIB), done, 1e-3)
        nodes.append(Node((start,)))
        nodes.append(Node((done, *(layer if prefetched else ())), 1.1e-3))
        layer = [len(nodes) - 1]
    return nodes


def in_xlas_order(nodes):
    return order.Run(nodes, range(len(nodes)))


class TimeTest(absltest.TestCase):
    def test_gathers_hide_behind_the_layer_before(self):
        nodes = layers(8, prefetched=False)
        self.assertAlmostEqual(in_xlas_order(nodes).seconds, 8 * 2.1e-3)
        after, added = order.early(nodes, 10 * MIB)
        self.assertEqual(added, 10 * MIB)
        self.assertAlmostEqual(after.seconds, 1e-3 + 8 * 1.1e-3)

    def test_nothing_moves_without_memory(self):
        nodes = layers(8, prefetched=False)
        self.assertEqual(order.early(nodes, 0)[0].positions, list(range(len(nodes))))

    def test_xlas_order_is_as_fast_if_it_starts_gathers_early(self):
        nodes = layers(8, prefetched=True)
        self.assertEmpty(violations(nodes, range(len(nodes))))
        found, _ = order.early(nodes, 100 * MIB)
        self.assertAlmostEqual(found.seconds, in_xlas_order(nodes).seconds)

    def test_an_urgent_collective_overtakes_another(self):
        # Both collectives could start at once. XLA first starts the one whose result only the last
        # instruction needs.
        nodes = [Node(), started(Node((0,)), 5, 1e-3), started(Node((0,)), 3, 1e-3), Node((2,))]
        nodes += [Node((3,), 1e-3), Node((1,)), Node((4, 5), 1e-3)]
        self.assertAlmostEqual(in_xlas_order(nodes).seconds, 4e-3)
        self.assertAlmostEqual(order.early(nodes, 0)[0].seconds, 3e-3)


if __name__ == "__main__":
    absltest.main()
