/** What of a head goes on to the other side. Pure: a raw head is `[name, value, name, value, …]`, as Node gives it. */

/** Of one connection only (RFC 9110, 7.6.1); each side of a proxy has its own. */
const OF_ONE_CONNECTION = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** Said anew, or answered by Node already. */
const OURS = ['expect', 'x-forwarded-for', 'x-forwarded-proto'];

/** Everything as it came, in its order, its case and as often, but what belongs to one connection. */
export function endToEnd(head: readonly string[], without: ReadonlySet<string> = new Set()): string[] {
  const named = new Set(valuesOf(head, 'connection').flatMap((value) => value.toLowerCase().split(/[\s,]+/)));
  const kept = ([name]: [string, string]): boolean => {
    const lower = name.toLowerCase();
    return !OF_ONE_CONNECTION.has(lower) && !named.has(lower) && !without.has(lower);
  };
  return pairs(head).filter(kept).flat();
}

/** A request's head for the upstream. `Host` stays the caller's; whose address it was is appended, as proxies do. */
export function upstreamHead(
  head: readonly string[],
  caller: string,
  host: string,
  dropped: ReadonlySet<string>,
): string[] {
  const passed = endToEnd(head, new Set([...OURS, ...dropped]));
  if (!valuesOf(head, 'host').length) passed.push('Host', host);
  passed.push('X-Forwarded-For', [...valuesOf(head, 'x-forwarded-for'), caller].join(', '));
  passed.push('X-Forwarded-Proto', valuesOf(head, 'x-forwarded-proto')[0] ?? 'http');
  return passed;
}

export function valuesOf(head: readonly string[], name: string): string[] {
  return pairs(head)
    .filter(([given]) => given.toLowerCase() === name)
    .map(([, value]) => value);
}

function pairs(head: readonly string[]): [string, string][] {
  return head.flatMap((name, i) => (i % 2 ? [] : [[name, head[i + 1] ?? ''] as [string, string]]));
}
