// Sanitizers: none. It computes with values, and compares the results.

#include "cc/simulator/simulator.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

// Cases that can be computed by hand.
namespace jax_cxl::sim {
namespace {

Machine SlowMachine(int hosts, int cards) {
  return {.hosts = hosts,
          .cards = cards,
          .gpu_out = 10,
          .gpu_in = 8,
          .uplink = 100,
          .card_in = 12,
          .card_out = 12,
          .card_both = 16,
          .memory = 1000};
}

Task Put(const Resources& resources, int rank, int card, double bytes) {
  Task task;
  task.stream = Stream::kOut;
  task.bytes = bytes;
  task.uses = {{resources.GpuOut(rank), 1},
               {resources.UplinkOut(rank), 1},
               {resources.CardIn(card), 1},
               {resources.CardBoth(card), 1}};
  return task;
}

Task Get(const Resources& resources, int rank, int card, double bytes) {
  Task task;
  task.stream = Stream::kIn;
  task.bytes = bytes;
  task.uses = {{resources.GpuIn(rank), 1},
               {resources.UplinkIn(rank), 1},
               {resources.CardOut(card), 1},
               {resources.CardBoth(card), 1}};
  return task;
}

double Seconds(const Resources& resources, TaskGraph graph) {
  const Result<Outcome> outcome = Simulate(resources, graph);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return outcome.ok() ? outcome->seconds : -1;
}

TEST(SimulatorTest, OneCopyOverOneLink) {
  const Resources resources(SlowMachine(1, 1));
  TaskGraph graph{.start = 2, .ranks = {{Put(resources, 0, 0, 50)}}};
  const Result<Outcome> outcome = Simulate(resources, graph);
  ASSERT_TRUE(outcome.ok());
  EXPECT_DOUBLE_EQ(outcome->seconds, 2 + 50. / 10);
  EXPECT_DOUBLE_EQ(outcome->moved[resources.CardIn(0)], 50);
  EXPECT_EQ(outcome->busiest, resources.GpuOut(0));
  EXPECT_DOUBLE_EQ(outcome->busy, 5. / 7);
}

TEST(SimulatorTest, TwoThatShareACardHalve) {
  const Resources resources(SlowMachine(2, 2));
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 60)},
                                                 {Put(resources, 1, 0, 60)}}}),
                   60. / 6);
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 60)},
                                                 {Put(resources, 1, 1, 60)}}}),
                   60. / 10);
}

TEST(SimulatorTest, WhoIsDoneLeavesItsShare) {
  const Resources resources(SlowMachine(2, 1));
  // Both puts run at rate 6 until the first put has moved its 30 bytes. Then
  // the other put moves its last 30 bytes at rate 10.
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 30)},
                                                 {Put(resources, 1, 0, 60)}}}),
                   5 + 3);
}

TEST(SimulatorTest, BothDirectionsRunAtOnceUpToTheCard) {
  const Resources resources(SlowMachine(1, 2));
  // On two cards, the put runs at rate 10 and the get at rate 8. On one card,
  // the rates sum to 16.
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 80),
                                                  Get(resources, 0, 1, 80)}}}),
                   10);
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 80),
                                                  Get(resources, 0, 0, 80)}}}),
                   10);
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{Put(resources, 0, 0, 80),
                                                  Get(resources, 0, 0, 64)}}}),
                   8 + 16. / 10);
}

TEST(SimulatorTest, StreamsKeepOrderAndSetupIsNotHidden) {
  const Resources resources(SlowMachine(1, 1));
  Task task = Put(resources, 0, 0, 20);
  task.setup = 3;
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{task, task}}}), 2 * (3 + 2));
}

TEST(SimulatorTest, LatencyHidesBehindTheCopyBefore) {
  const Resources resources(SlowMachine(1, 1));
  Task task = Put(resources, 0, 0, 50);
  task.latency = 1;
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{task, task}}}), 1 + 5 + 5);
  task.bytes = 5;
  EXPECT_DOUBLE_EQ(Seconds(resources, {.ranks = {{task, task}}}),
                   1 + 1 + .5);  // the second waits from the first's start
}

// Every rank rings, and waits for all others.
TEST(SimulatorTest, BarrierTakesADoorbell) {
  const Resources resources(SlowMachine(3, 1));
  TaskGraph graph{.start = 1, .doorbell_seconds = 5, .ranks = {}};
  for (int rank = 0; rank < 3; ++rank) {
    Task ring;
    ring.stream = Stream::kOut;
    ring.setup = rank;  // the last rank determines the time
    ring.rings = Doorbell::kPublished;
    ring.rung = 1;
    Task wait;
    wait.stream = Stream::kIn;
    wait.await = Doorbell::kPublished;
    wait.last = 3;
    wait.value = 1;
    graph.ranks.push_back({ring, wait});
  }
  EXPECT_DOUBLE_EQ(Seconds(resources, graph), 1 + 2 + 5);
}

TEST(MachineTest, GpusShareTheLinksOfTheirHostEvenly) {
  Machine machine = SlowMachine(2, 1);
  machine.gpus_per_host = 4;
  machine.links_per_host = 2;
  const Resources resources(machine);
  std::vector<std::string> names;
  for (int rank = 0; rank < machine.ranks(); ++rank)
    names.push_back(resources.Name(resources.UplinkOut(rank)));
  const std::vector<std::string> expected = {
      "uplink out of host 0, link 0", "uplink out of host 0, link 0",
      "uplink out of host 0, link 1", "uplink out of host 0, link 1",
      "uplink out of host 1, link 0", "uplink out of host 1, link 0",
      "uplink out of host 1, link 1", "uplink out of host 1, link 1"};
  EXPECT_EQ(names, expected);
}

TEST(SimulatorTest, ATaskMayFollowOneOfAnotherStream) {
  const Resources resources(SlowMachine(1, 2));
  Task put = Put(resources, 0, 1, 50);
  put.after = 0;
  EXPECT_DOUBLE_EQ(
      Seconds(resources, {.ranks = {{Get(resources, 0, 0, 80), put}}}), 10 + 5);
}

TEST(SimulatorTest, DeadlockIsAnError) {
  const Resources resources(SlowMachine(2, 1));
  Task wait;
  wait.await = Doorbell::kPublished;
  wait.last = 2;
  wait.value = 1;
  const Result<Outcome> outcome = Simulate(resources, {.ranks = {{wait}, {}}});
  EXPECT_EQ(outcome.status().code(), Code::kInternal);
}

TEST(ResourcesTest, GpusOfAHostShareItsUplink) {
  Machine machine = SlowMachine(2, 1);
  machine.gpus_per_host = 2;
  const Resources resources(machine);
  EXPECT_EQ(resources.UplinkOut(0), resources.UplinkOut(1));
  EXPECT_NE(resources.UplinkOut(1), resources.UplinkOut(2));
  EXPECT_EQ(resources.Name(resources.UplinkIn(3)), "uplink into host 1");
  EXPECT_EQ(resources.Name(resources.CardBoth(0)),
            "reads and writes of card 0");
  EXPECT_EQ(resources.Name(resources.GpuIn(3)), "copies into rank 3");
}

}  // namespace
}  // namespace jax_cxl::sim
