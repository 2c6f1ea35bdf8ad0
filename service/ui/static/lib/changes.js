// The history of an alias as the API lists it, oldest first: what the alias points to, its ETag, and where a rollback
// leads. It asks nothing.

export const versionOf = changes => changes.at(-1)?.version ?? null;

// The ETag that the alias has after these changes, "" in quotes where it points to nothing.
export const tagOf = changes => `"${versionOf(changes) ?? ''}"`;

// Versions that a rollback may lead to, the nearest first, some of them deleted perhaps. A change pushes what was there
// before and a rollback pops, so rolling back twice goes two changes back; a removal is a change like a promotion.
export function wayBack(changes) {
  const stack = [];
  for (const {action, version, previous} of changes) {
    if (action === 'rollback') stack.length = Math.max(0, stack.lastIndexOf(version));
    else if (previous !== null) stack.push(previous);
  }
  const present = versionOf(changes);
  return [...new Set(stack.reverse())].filter(version => version !== present);
}

// The version that a rollback leads to, or null; `exists` says of a version whether it is still there.
export async function rollbackTarget(changes, exists) {
  for (const version of wayBack(changes)) if (await exists(version)) return version;
  return null;
}
