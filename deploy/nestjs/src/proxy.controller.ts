import { All, Controller, Get, Header, Req, Res } from '@nestjs/common';
import { IncomingMessage, ServerResponse } from 'node:http';
import { Passages } from './passages.js';

/** What is passed on; everything else is 404, so that neither metrics nor a login of the gateway get out. */
@Controller()
export class ProxyController {
  constructor(private readonly passages: Passages) {}

  @All(['chat', 'chat/stream', 'v1/*path', 'readyz'])
  pass(@Req() request: IncomingMessage, @Res() response: ServerResponse): void {
    this.passages.pass(request, response);
  }

  /** This process lives; `/readyz` is the gateway's word. */
  @Get('healthz')
  @Header('Cache-Control', 'no-store')
  health(): { status: string } {
    return { status: 'ok' };
  }
}
