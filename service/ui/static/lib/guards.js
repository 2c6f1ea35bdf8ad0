// The guards of a rollout, judged as the server judges them: none acts before its versions had enough requests.

// As in service/deployments/rollouts.py.
const LEAST_TIMES = 60;

// Each guard with what was observed, its limit and its state: waiting, ok or broken.
export function guardsOf({guards, observed: {base, candidate}}) {
  const heard = candidate.requests >= guards.min_requests;
  const [theirs, mine] = [base.ttft_p95_ms, candidate.ttft_p95_ms];
  const timed = Math.min(base.timed, candidate.timed) >= Math.max(guards.min_requests, LEAST_TIMES);
  const compared = heard && timed && theirs && mine;
  const state = (acts, broken) => acts ? (broken ? 'broken' : 'ok') : 'waiting';
  return [
    {guard: 'error_rate', limit: guards.error_rate, value: candidate.requests ? candidate.error_rate : null,
      state: state(heard, candidate.error_rate > guards.error_rate)},
    {guard: 'ttft_p95_ratio', limit: guards.ttft_p95_ratio, value: theirs && mine ? mine / theirs : null,
      state: state(compared, mine > guards.ttft_p95_ratio * theirs)},
  ];
}

// The guard that ended a rollout and what it had observed, by the server's reason: "error rate 12.0%, at most 5.0%" or
// "TTFT p95 3.4x that of demo:1, at most 3x". Null for another reason.
export function brokenBy(reason) {
  const found = /^(error rate|TTFT p95) ([\d.]+)([%x])/.exec(reason);
  if (!found) return null;
  return found[1] === 'error rate' ? {guard: 'error_rate', value: found[2] / 100} : {guard: 'ttft_p95_ratio', value: Number(found[2])};
}

// The guards after one of them ended the rollout: `rollout` is as it was seen last.
export function guardsAfter(rollout, reason) {
  const broken = brokenBy(reason);
  return guardsOf(rollout).map(each => each.guard === broken?.guard ? {...each, value: broken.value, state: 'broken'} : each);
}
