/** What the environment says, read once at start. Durations are seconds there, milliseconds here. */
export interface Settings {
  readonly host: string;
  readonly port: number;
  /** Where a gateway, or what stands in front of several, answers: http or https, with a path before ours if need be. */
  readonly upstream: URL;
  readonly connectMs: number;
  /** From a request's last byte to the head of its answer; 0: as long as it takes. Nothing limits a body. */
  readonly answerMs: number;
  readonly drainMs: number;
  /** In small letters: headers that callers may not send, as the one in which the gateway is told who somebody is. */
  readonly dropped: ReadonlySet<string>;
}

/** The name under which the settings are injected. */
export const SETTINGS = Symbol('settings');

type Environment = Readonly<Record<string, string | undefined>>;

/** Throws an `Error` that names the variable, its value and what is allowed. */
export function readSettings(environment: Environment): Settings {
  return Object.freeze({
    host: environment.PROXY_HOST || '127.0.0.1',
    port: number(environment, 'PROXY_PORT', 8600, 65_535),
    upstream: address(environment, 'PROXY_UPSTREAM', 'http://127.0.0.1:8700'),
    connectMs: 1000 * number(environment, 'PROXY_CONNECT_TIMEOUT', 5, 3600),
    answerMs: 1000 * number(environment, 'PROXY_ANSWER_TIMEOUT', 3600, 86_400),
    drainMs: 1000 * number(environment, 'PROXY_DRAIN', 5, 3600),
    dropped: new Set((environment.PROXY_DROP_HEADERS ?? '').toLowerCase().split(/[\s,]+/).filter(Boolean)),
  });
}

function number(environment: Environment, name: string, otherwise: number, most: number): number {
  const text = environment[name];
  if (!text) return otherwise;
  const value = Number(text);
  if (value >= 0 && value <= most) return value;
  throw new Error(`${name}=${text} is not allowed: it is a number from 0 to ${most}`);
}

function address(environment: Environment, name: string, otherwise: string): URL {
  const text = environment[name] || otherwise;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const plain = url && !url.search && !url.hash && !url.username;
  if (plain && (url.protocol === 'http:' || url.protocol === 'https:')) return url;
  throw new Error(`${name}=${text} is not allowed: it is http://HOST[:PORT][/PATH] or https://…`);
}
