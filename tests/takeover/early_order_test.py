"""The order in which collectives start early: random graphs, and estimated times."""

import dataclasses
import random

import numpy as np
from absl.testing import absltest, parameterized

from jax_cxl._takeover.schedule import order
from jax_cxl._takeover.schedule.model import Node, Pair

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


def in_use(nodes, positions):
    """Returns the bytes in use at each place of an order: results, until their last readers."""
    last = {}
    for place, position in enumerate(positions):
        last |= dict.fromkeys((position, *nodes[position].reads), place)
    change = np.zeros(len(nodes) + 1, np.int64)
    for place, position in enumerate(positions):
        change[place] += nodes[position].size
        change[last[position] + 1] -= nodes[position].size
    return np.cumsum(change)[:-1]


def random_graph(seed, count=80):
    """Returns random instructions in a valid order, and random collectives among them."""
    draw = random.Random(seed)
    nodes, pairs, started = [], [], []
    owners = []  # For each instruction, those whose memory its result has.
    while len(nodes) < count:
        here = len(nodes)
        before = {draw.randrange(here) for _ in range(draw.randint(0, 3)) if here}
        before -= {start for start, _ in started}
        kind = draw.random()
        if kind < 0.2 and here:
            operand = draw.choice(sorted(before) or [0])
            if operand in {start for start, _ in started}:
                continue
            reads = owners[operand]
            nodes.append(Node((operand,), size=draw.choice((1, 8)) * MIB, reads=tuple(reads)))
            started.append((here, reads))
            owners.append({here})
        elif kind < 0.45 and started:
            start, reads = started.pop(draw.randrange(len(started)))
            nodes.append(Node((start, *before), view=True, reads=(start, *reads)))
            seconds = draw.uniform(1e-5, 2e-3)
            pairs.append(Pair(start, here, seconds, movable=draw.random() < 0.8))
            owners.append({start})
        else:
            view = draw.random() < 0.2 and bool(before)
            size = 0 if view else draw.randrange(3) * MIB
            movable = not view and draw.random() < 0.6
            seconds = 0.0 if view else draw.uniform(0, 1e-3)
            below = set().union(*(owners[b] for b in before))
            reads = () if view else tuple(below)
            nodes.append(Node(tuple(sorted(before)), seconds, size, movable, view, reads))
            owners.append(below if view else {here})
    for start, reads in started:
        nodes.append(Node((start,), view=True, reads=(start, *reads)))
        pairs.append(Pair(start, len(nodes) - 1, 1e-3))
        owners.append({start})
    last = range(len(nodes) - 5, len(nodes))
    nodes.append(Node(tuple(last), reads=tuple(set().union(*(owners[i] for i in last)))))
    return nodes, pairs


class PlacedTest(absltest.TestCase):
    def test_starts_that_may_not_move_stay(self):
        nodes = [
            Node(size=MIB, movable=True),
            Node((0,), 1e-3, MIB),
            Node((0,), size=MIB),
            Node((2,), view=True),
            Node((3,), size=MIB),
            Node((4,), view=True),
            Node((1, 5)),
        ]
        for movable in (False, True):
            pairs = [Pair(2, 3, 1e-4, movable=movable), Pair(4, 5, 1e-4)]
            found = order.arrange(nodes, pairs, 100 * MIB)[0].positions
            self.assertEqual(found.index(2) < found.index(1), movable, found)


class RandomTest(parameterized.TestCase):
    @parameterized.parameters(range(60))
    def test_order(self, seed):
        nodes, pairs = random_graph(seed)
        self.assertEmpty(violations(nodes, range(len(nodes))))
        for limit in (0, 4 * MIB, 1 << 40):
            found, _ = order.arrange(nodes, pairs, limit)
            self.assertCountEqual(found.positions, range(len(nodes)))
            self.assertEmpty(violations(nodes, found.positions))
            self.assertEqual(found.positions, order.arrange(nodes, pairs, limit)[0].positions)
            # Instructions that must not move keep their order.
            ends = {i for pair in pairs for i in (pair.start, pair.done)}
            stay = [
                i
                for i in found.positions
                if i not in ends and not (nodes[i].view or nodes[i].movable)
            ]
            self.assertEqual(stay, sorted(stay))

    @parameterized.parameters(range(60))
    def test_memory(self, seed):
        nodes, pairs = random_graph(seed)
        before = order.simulate(nodes, pairs, range(len(nodes)))
        most = in_use(nodes, range(len(nodes))).max()
        for limit in (0, 4 * MIB, 1 << 40):
            found, added = order.arrange(nodes, pairs, limit)
            self.assertLessEqual(in_use(nodes, found.positions).max(), most + added)
            if (earlier := order.early(nodes, pairs, limit)) is not None:
                found, added = earlier
                self.assertLess(found.seconds, before.seconds)
                self.assertLessEqual(in_use(nodes, found.positions).max(), most + added)
                self.assertLessEqual(added, limit)

    def test_operands_and_delays_count(self):
        """Without them, an order may take more bytes than it says."""
        wrong = 0
        for seed in range(60):
            nodes, pairs = random_graph(seed)
            blind = [dataclasses.replace(node, reads=()) for node in nodes]
            found, added = order.arrange(blind, pairs, 4 * MIB)
            most = in_use(nodes, range(len(nodes))).max()
            wrong += in_use(nodes, found.positions).max() > most + added
        self.assertGreater(wrong, 0)

    def test_a_start_before_its_operand_is_found(self):
        for seed in range(20):
            nodes, pairs = random_graph(seed)
            positions = order.arrange(nodes, pairs, MIB)[0].positions
            start = pairs[0].start
            positions.remove(start)
            positions.insert(positions.index(nodes[start].before[0]), start)
            self.assertIn((nodes[start].before[0], start), violations(nodes, positions))

    def test_an_order_that_ignores_operands_is_found(self):
        wrong = 0
        for seed in range(20):
            nodes, pairs = random_graph(seed)
            starts = {pair.start for pair in pairs}
            free = [Node(size=node.size) if i in starts else node for i, node in enumerate(nodes)]
            wrong += bool(violations(nodes, order.arrange(free, pairs, 1 << 40)[0].positions))
        self.assertGreater(wrong, 10)


def layers(count, prefetched):
    """Returns layers, each of which needs a gathered array.

    Args:
      count: number of layers.
      prefetched: whether the gather for a layer starts before the previous layer; otherwise it
        starts after that layer.
    """
    nodes, pairs = [Node(movable=True)], []
    for _ in range(count):
        start, seconds = len(nodes), 1e-3
        nodes.append(Node((0,), size=10 * MIB))
        if prefetched and start > 1:
            nodes[-1], nodes[-2] = nodes[-2], nodes[-1]
            start -= 1
        nodes.append(Node((start,), view=True))
        pairs.append(Pair(start, len(nodes) - 1, seconds))
        before = [len(nodes) - 1] + ([start + 1] if prefetched and start > 1 else [])
        nodes.append(Node(tuple(before), 1.1e-3))
    return nodes, pairs


class TimeTest(absltest.TestCase):
    def test_gathers_hide_behind_the_layer_before(self):
        nodes, pairs = layers(8, prefetched=False)
        before = order.simulate(nodes, pairs, range(len(nodes)))
        self.assertAlmostEqual(before.seconds, 8 * 2.1e-3)
        after, added = order.early(nodes, pairs, 10 * MIB)
        self.assertEqual(added, 10 * MIB)
        self.assertAlmostEqual(after.seconds, 1e-3 + 8 * 1.1e-3)
        self.assertAlmostEqual(after.waits, 1e-3)

    def test_nothing_moves_without_memory(self):
        nodes, pairs = layers(8, prefetched=False)
        self.assertIsNone(order.early(nodes, pairs, 0))

    def test_xlas_order_stays_where_it_is_as_fast(self):
        nodes, pairs = layers(8, prefetched=True)
        self.assertEmpty(violations(nodes, range(len(nodes))))
        self.assertIsNone(order.early(nodes, pairs, 100 * MIB))

    def test_an_urgent_collective_overtakes_another(self):
        # Both collectives could start at once. XLA first starts the one whose result only the last
        # instruction needs.
        nodes = [Node(), Node((0,)), Node((0,)), Node((2,), view=True), Node((3,), 1e-3)]
        nodes += [Node((1,), view=True), Node((4, 5), 1e-3)]
        pairs = [Pair(1, 5, 1e-3), Pair(2, 3, 1e-3)]
        self.assertAlmostEqual(order.simulate(nodes, pairs, range(7)).seconds, 4e-3)
        self.assertAlmostEqual(order.early(nodes, pairs, 0)[0].seconds, 3e-3)


if __name__ == "__main__":
    absltest.main()
