import { ArgumentsHost, Catch, ExceptionFilter, Logger } from '@nestjs/common';
import { IncomingMessage, ServerResponse } from 'node:http';

/** What this proxy answers by itself, in the form of the gateway's own errors (RFC 9457): code → status and title. */
const PROBLEMS = {
  bad_request: [400, 'Bad request'],
  not_found: [404, 'No such address'],
  internal: [500, 'Internal error'],
  upstream_failed: [502, 'The upstream did not answer'],
  upstream_timeout: [504, 'The upstream did not answer in time'],
} as const;

export type Code = keyof typeof PROBLEMS;

const RETRY_AFTER = 2;

/** Answer with a problem; nothing where an answer has begun or nobody waits for one. */
export function answerProblem(response: ServerResponse, code: Code, detail: string): void {
  if (response.headersSent || response.closed) return;
  const [status, title] = PROBLEMS[code];
  const body = JSON.stringify({ type: `urn:runcast:problem:${code}`, title, status, code, detail });
  response.writeHead(status, {
    'Content-Type': 'application/problem+json',
    'Content-Length': Buffer.byteLength(body),
    'Cache-Control': 'no-store',
    ...(status > 500 && { 'Retry-After': RETRY_AFTER }),
  });
  response.end(body);
}

/** Nest's and Express' own errors (no such route, a path that is no URL) in the same form. */
@Catch()
export class ProblemFilter implements ExceptionFilter {
  private readonly log = new Logger('Proxy');

  catch(error: unknown, host: ArgumentsHost): void {
    const http = host.switchToHttp();
    const request = http.getRequest<IncomingMessage>();
    const status = (error as { status?: unknown }).status;
    const code: Code = status === 404 ? 'not_found' : status === 400 ? 'bad_request' : 'internal';
    if (code === 'internal') this.log.error(error);
    const [path] = (request.url ?? '').split('?', 1);
    answerProblem(http.getResponse<ServerResponse>(), code, `${request.method} ${path}: ${TOLD[code]}`);
  }
}

const TOLD: Partial<Record<Code, string>> = {
  not_found: 'passed on are /chat, /chat/stream and everything under /v1/',
  bad_request: 'this path is not valid',
  internal: 'an unexpected error; the log of the proxy has it',
};
