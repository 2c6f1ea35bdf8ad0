// The last minutes of each version's live figures. It is bounded: a page that stays open does not grow.
const SECONDS = 300, SHORTEST = 60, MOST_STEPS = 240;
const mean = (steps, key) => steps.length ? steps.reduce((sum, step) => sum + step[key], 0) / steps.length : NaN;

// The numbers of one second of one version.
const sample = version => ({
  running: version.running, waiting: version.waiting,
  used: version.kv_blocks.total - version.kv_blocks.free - version.kv_blocks.cached, cached: version.kv_blocks.cached,
  tokens: version.tokens_per_second, prompt: version.prompt_tokens_per_second,
  sequences: version.steps.length ? mean(version.steps, 'sequences') : 0, size: mean(version.steps, 'tokens'),
  ttft50: version.ttft_seconds.p50 ?? NaN, ttft95: version.ttft_seconds.p95 ?? NaN,
  itl50: version.itl_seconds.p50 ?? NaN, itl95: version.itl_seconds.p95 ?? NaN,
});

export class History {
  #kept = new Map();

  // Adds an event. Seconds without one, as while the page was hidden, stay empty; a version that is gone is forgotten.
  add({at, versions}) {
    const before = this.#kept;
    this.#kept = new Map(versions.map(version => {
      const old = before.get(version.model) ?? {at: at - 1, samples: [], steps: []};
      const missed = Math.min(SECONDS, Math.max(0, Math.round(at - old.at) - 1));
      const samples = [...old.samples, ...Array(missed).fill(null), sample(version)].slice(-SECONDS);
      return [version.model, {at, samples, steps: [...old.steps, ...version.steps].slice(-MOST_STEPS)}];
    }));
  }

  steps = model => this.#kept.get(model)?.steps ?? [];

  // A figure over time, oldest first, NaN where nothing is known; not shorter than a minute.
  line(model, key) {
    const samples = this.#kept.get(model)?.samples ?? [];
    return [...Array(Math.max(0, SHORTEST - samples.length)).fill(NaN), ...samples.map(each => each ? each[key] : NaN)];
  }
}
