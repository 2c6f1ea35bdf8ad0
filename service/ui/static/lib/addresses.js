// Every address of the API and of the UI, made from the address of this script: a proxy may have put a prefix before all.
export const ui = new URL('../../../', import.meta.url);
const api = new URL('../', ui);
const part = encodeURIComponent;

export const apiAddress = path => new URL(path.replace(/^\//, ''), api);
const page = path => new URL(path, ui).pathname + new URL(path, ui).search;

export const pages = {
  models: () => page('models'),
  model: model => page(`models/${part(model)}`),
  version: (model, version) => page(`models/${part(model)}/versions/${part(version)}`),
  compare: (model, a, b) => page(`models/${part(model)}/compare?a=${part(a)}&b=${part(b)}`),
  alias: (model, alias) => page(`models/${part(model)}/aliases/${part(alias)}`),
  rollout: (model, alias) => page(`models/${part(model)}/aliases/${part(alias)}/rollout`),
  playground: session => page(session ? `playground?session=${part(session)}` : 'playground'),
  sideBySide: (a, b) => page(`side-by-side?a=${part(a)}&b=${part(b)}`),
  sessions: () => page('sessions'),
  session: id => page(`sessions/${part(id)}`),
  live: () => page('live'),
  jobs: () => page('jobs'),
  keys: () => page('keys'),
  audit: () => page('audit'),
  job: id => page(`jobs?job=${part(id)}`),
};

// The page of a reference as the API writes versions: "demo:2".
export function pageOfReference(reference) {
  const [model, version] = reference.split(':');
  return version ? pages.version(model, version) : pages.model(model);
}

export const repository = (...parts) => ['v1/repository/models', ...parts.map(part)].join('/');
