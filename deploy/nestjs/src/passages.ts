import { BeforeApplicationShutdown, Inject, Injectable, Logger } from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import * as http from 'node:http';
import * as https from 'node:https';
import { isIP } from 'node:net';
import { endToEnd, upstreamHead } from './heads.js';
import { answerProblem } from './problems.js';
import { SETTINGS, type Settings } from './settings.js';

/** A peer that vanished without a word is noticed by TCP's own probes, since no timer limits a stream. */
const PROBE_MS = 30_000;
/** Bytes of a body from which an upstream is asked whether it wants it, and how long that waits for a word (RFC 9110,
 * 10.1.1: not for ever, since not all know of it). */
const LARGE = 1 << 16;
const CONTINUE_MS = 1_000;
const DOT_SEGMENT = /(?:^|\/)(?:\.|%2e){1,2}(?:\/|$)/i;

class TooLate extends Error {}

/**
 * Takes requests to the upstream and its answers back, as bytes: nothing is read, changed or kept. A reader that is
 * slow slows the upstream down (`pipe`); one that leaves ends the upstream request at once.
 *
 * Each request has an upstream connection of its own: one that were kept might be closed just when it is used again,
 * and a POST cannot be repeated.
 */
@Injectable()
export class Passages implements BeforeApplicationShutdown {
  private readonly log = new Logger('Proxy');
  private readonly open = new Set<http.ServerResponse>();
  private readonly client: typeof http | typeof https;
  private readonly agent: http.Agent;

  constructor(
    @Inject(SETTINGS) private readonly settings: Settings,
    private readonly adapter: HttpAdapterHost,
  ) {
    this.client = settings.upstream.protocol === 'https:' ? https : http;
    this.agent = new this.client.Agent({ keepAlive: false });
  }

  /** Pass this request on. Returns at once; whatever becomes of it is told to `response`. */
  pass(request: http.IncomingMessage, response: http.ServerResponse): void {
    const [path = ''] = (request.url ?? '').split('?', 1);
    if (!path.startsWith('/') || DOT_SEGMENT.test(path)) {
      answerProblem(response, 'bad_request', `the path ${path} is not allowed: give it from /, without dot segments`);
      return;
    }
    const upstream = this.client.request(this.options(request));
    this.open.add(response);
    response.once('close', () => {
      this.open.delete(response);
      upstream.destroy();
    });
    this.limit(upstream);
    upstream.once('response', (answer) => relay(answer, response));
    upstream.on('error', (error) => this.failed(request, response, error));
    send(request, upstream);
  }

  private options(request: http.IncomingMessage): https.RequestOptions {
    const { upstream, dropped } = this.settings;
    const caller = request.socket.remoteAddress ?? 'unknown';
    const hostname = upstream.hostname.replace(/^\[|\]$/g, '');
    const head = upstreamHead(request.rawHeaders, caller, upstream.host, dropped);
    return {
      agent: this.agent,
      hostname,
      // Of the upstream's certificate, whatever `Host` the caller asked for; addresses have none.
      servername: isIP(hostname) ? '' : hostname,
      port: upstream.port,
      method: request.method,
      path: upstream.pathname.replace(/\/$/, '') + request.url,
      headers: [...head, ...framing(request)] as unknown as http.OutgoingHttpHeaders,
    };
  }

  /** Until it is connected, and from its last byte until the head of its answer. Then nothing is limited. */
  private limit(upstream: http.ClientRequest): void {
    const { connectMs, answerMs } = this.settings;
    const timer = (ms: number, what: string) =>
      ms ? setTimeout(() => upstream.destroy(new TooLate(`no ${what} within ${ms / 1000} s`)), ms) : undefined;
    const connecting = timer(connectMs, 'connection');
    let answering: NodeJS.Timeout | undefined;
    upstream.once('socket', (socket) => {
      socket.setKeepAlive(true, PROBE_MS);
      socket.once(this.client === https ? 'secureConnect' : 'connect', () => clearTimeout(connecting));
    });
    // An upstream may answer before it has the whole request.
    let answered = false;
    upstream.once('finish', () => {
      if (!answered) answering = timer(answerMs, 'answer');
    });
    const settled = (): void => {
      answered = true;
      clearTimeout(connecting);
      clearTimeout(answering);
    };
    upstream.once('response', settled).once('close', settled);
  }

  /** No answer came. An EventSource would give up for good at a 5xx: it is told to come back, as the gateway does. */
  private failed(request: http.IncomingMessage, response: http.ServerResponse, error: Error): void {
    if (response.headersSent || response.closed) return;
    const [path] = (request.url ?? '').split('?', 1);
    this.log.warn(`${request.method} ${path}: ${error.message}`);
    if (request.method === 'GET' && request.headers.accept?.includes('text/event-stream')) {
      response.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8', 'Cache-Control': 'no-cache' });
      response.end(`retry: ${Math.round(1000 + 2000 * Math.random())}\n\n`);
      return;
    }
    const late = error instanceof TooLate;
    const detail = late ? error.message : 'it could not be reached, or broke off before its answer began';
    answerProblem(response, late ? 'upstream_timeout' : 'upstream_failed', detail);
  }

  /** Nothing new is let in; what is open may end within the drain time, and is cut then. */
  async beforeApplicationShutdown(): Promise<void> {
    const server: http.Server = this.adapter.httpAdapter.getHttpServer();
    server.close();
    const end = Date.now() + this.settings.drainMs;
    while (this.open.size && Date.now() < end) await new Promise((wake) => setTimeout(wake, 20));
    server.closeAllConnections();
  }
}

/** Node frames a body anew: as long as it was said to be, or in chunks. */
function framing(request: http.IncomingMessage): string[] {
  if (request.headers['transfer-encoding'] !== undefined) return ['Transfer-Encoding', 'chunked'];
  if (asksFirst(request)) return ['Expect', '100-continue'];
  const sized = request.headers['content-length'] !== undefined;
  return sized || ['GET', 'HEAD', 'OPTIONS'].includes(request.method ?? '') ? [] : ['Content-Length', '0'];
}

/** An upstream that refuses a large body closes in the midst of it, and its answer could be lost behind that. */
function asksFirst(request: http.IncomingMessage): boolean {
  return Number(request.headers['content-length'] ?? 0) > LARGE;
}

function send(request: http.IncomingMessage, upstream: http.ClientRequest): void {
  let begun = false;
  const begin = (): void => {
    if (!begun) request.pipe(upstream);
    begun = true;
  };
  // What an upstream leaves unread is let go: the caller's connection is usable again once that is gone.
  const leave = (): void => {
    begun = true;
    request.unpipe(upstream);
    request.resume();
  };
  upstream.once('close', leave);
  if (!asksFirst(request)) return begin();
  upstream.flushHeaders();
  const waited = setTimeout(begin, CONTINUE_MS);
  upstream.once('continue', begin);
  upstream.once('response', () => (begun ? undefined : leave()));
  for (const event of ['continue', 'response', 'close']) upstream.once(event, () => clearTimeout(waited));
}

function relay(answer: http.IncomingMessage, response: http.ServerResponse): void {
  response.sendDate = false;
  response.writeHead(answer.statusCode ?? 502, answer.statusMessage, endToEnd(answer.rawHeaders));
  response.flushHeaders();
  // What breaks off there breaks off here: ended properly, half an answer would pass for a whole one.
  answer.once('error', () => response.socket?.destroySoon());
  answer.pipe(response);
}
