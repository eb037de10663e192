import { DynamicModule, Module } from '@nestjs/common';
import { APP_FILTER } from '@nestjs/core';
import { Passages } from './passages.js';
import { ProblemFilter } from './problems.js';
import { ProxyController } from './proxy.controller.js';
import { SETTINGS, type Settings } from './settings.js';

@Module({})
export class ProxyModule {
  static of(settings: Settings): DynamicModule {
    return {
      module: ProxyModule,
      controllers: [ProxyController],
      providers: [{ provide: SETTINGS, useValue: settings }, { provide: APP_FILTER, useClass: ProblemFilter }, Passages],
    };
  }
}
