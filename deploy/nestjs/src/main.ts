import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { NestExpressApplication } from '@nestjs/platform-express';
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { ProxyModule } from './proxy.module.js';
import { readSettings } from './settings.js';

const KEEP_ALIVE_MS = 65_000;
const PROBE_MS = 30_000;

async function main(): Promise<void> {
  const settings = readSettings(process.env);
  // Without body parsers: a body that was parsed could not be passed on as it came.
  const app = await NestFactory.create<NestExpressApplication>(ProxyModule.of(settings), {
    bodyParser: false,
    forceCloseConnections: true,
    logger: ['error', 'warn', 'log'],
  });
  app.disable('x-powered-by');
  app.enableShutdownHooks(['SIGTERM', 'SIGINT'], { useProcessExit: true });
  const server: Server = app.getHttpServer();
  // Longer than what load balancers keep, so that they close first.
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  server.on('connection', (socket: Socket) => socket.setKeepAlive(true, PROBE_MS));
  await app.listen(settings.port, settings.host);
  new Logger('Proxy').log(`${await app.getUrl()} passes on to ${settings.upstream.href}`);
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
