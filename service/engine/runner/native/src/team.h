// A team is the threads of one step, each on a core of its own.
//
// The operating system may wake a thread on the core of the thread that woke it, most of all after an idle time. Then
// the two wait for each other at every barrier, until its balancing parts them ten milliseconds later. Here each thread
// looks at its core, and the two part at once.
#pragma once

#include <cstdint>

#ifdef __linux__
#include <sched.h>

#include <atomic>
#endif

namespace dosirak {

#ifdef __linux__
class Team {
  public:
    // Each thread calls it first. Threads past MOST stay where they are. A thread's affinity is the same before and
    // after. Returns the thread's core.
    int part(int thread, int threads) {
        const int here = sched_getcpu();
        if (threads < 2 || threads > MOST) return here;
        cores_[thread].store(here);
        arrived_.fetch_add(1);
        // a thread that waits for this core can arrive when it is given up; no thread waits for one that is kept away
        for (int turn = 0; arrived_.load() < threads; turn++)
            if (turn == PATIENCE || sched_yield()) return here;
        for (int other = 0; other < thread; other++)
            if (cores_[other].load() == here) return move(threads, here);
        return here;
    }

  private:
    int move(int threads, int here) {
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed)) return here;
        cpu_set_t others = allowed;
        for (int other = 0; other < threads; other++) CPU_CLR(cores_[other].load(), &others);
        if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof others, &others)) return here;
        const int now = sched_getcpu();
        sched_setaffinity(0, sizeof allowed, &allowed);
        return now;
    }

    static constexpr int MOST = 256, PATIENCE = 1000;
    std::atomic<int> arrived_{0}, cores_[MOST];
};
#else
class Team {
  public:
    int part(int, int) { return -1; }
};
#endif

}  // namespace dosirak
