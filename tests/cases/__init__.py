"""Faults that others met, as inputs with their right answers: one place to find the test that holds each of them.

| case | what goes wrong elsewhere | held by |
|---|---|---|
| 1 | ids repeat or run backwards, a resume skips | test_resume.py: test_case_01 |
| 2 | items that retention removed are missed in silence, or a gap is told where there is none | test_resume.py: test_case_02; ../gateway/test_stream.py: test_what_retention_removed_is_one_gap |
| 3 | a strange Last-Event-ID is an error of Redis, or a hang | test_resume.py: test_case_03; ../broker/test_cursor.py: test_ |
| 4 | a killed worker's run never ends, or ends twice | test_lost.py: test_case_04; ../broker/test_sweep.py: test_of_several_sweepers_one_ends_the_run |
| 5 | joining a finished run waits for ever | test_resume.py: test_case_05 |
| 6 | the end is lost with a connection to Redis; an early join fails | test_connections.py: test_case_06; ../gateway/test_outage.py: test_the_fence_arrives_though_the_connection_is_cut_around_it |
| 7 | items are lost, or come twice, where replay meets live | ../e2e/test_seam.py: test_each_viewer_is_contiguous_whole_and_soon_live |
| 8 | a retried append is stored twice | test_lost.py: test_case_08; ../broker/test_publisher.py: test_whatever_the_store_does_the_log_is_what_was_published |
| 9 | idle viewers use up connections, time out, or get each other's replies | test_connections.py: test_case_09; ../broker/test_redis.py: test_replies_still_match_after_random_cancellations |
| 10 | viewers that do not read fill the memory, or stop the rest | test_slow.py: test_case_10; ../gateway/test_slow_viewers.py: test_; ../gateway/test_transport.py: test_a_slow_reader_is_demoted_and_reads_on_exactly |
| 11 | leaving cancels a run; a cancel is lost in an outage | test_lost.py: test_case_11 |
| 12 | a shutdown tears frames, or hangs | ../gateway/test_drain.py: test_100_live_streams_are_drained_and_go_on_elsewhere |
| 13 | a cursor withholds the end of a chat | ../webui/test_vectors.py: test_over_http; ../webui/test_interleavings.py: test_every_viewer_gets_the_fence_or_one_recovery_signal |
| 14 | what happens to a run has no id, so a resume repeats or drops it | test_lost.py: test_case_14; ../webui/test_stream.py: test_a_cancel_and_a_lost_worker_own_their_ids |
| 15 | a log without its beginning is shown as if it were whole | ../webui/test_stream.py: test_retention_that_overtakes_a_live_viewer_is_one_recovery_signal; ../webui/test_clients.py: test_a_return_to_a_turn_of_which_too_much_is_gone |
| 16 | a client stores the id of a control frame | test_resume.py: test_case_16; ../webui/test_format.py: test_a_recovery_signal_is_no_item |
| 17 | a proxy holds frames back, or changes them | ../e2e/test_nginx.py: test_events_arrive_as_they_are_made; ../webui/test_proxies.py: test_the_bytes_are_those_of_the_gateway |
| 18 | a worker that merely stopped counts as a success; a slow cleanup delays the end | test_lost.py: test_case_18 |
| 19 | the agent's own session id changes in mid-run, and the client waits for the old one's end | ../webui/test_clients.py: test_a_session_id_that_hermes_rotates |
| 20 | other modes at the reconnect break the cursor | test_resume.py: test_case_20 |
| 21 | a filtered viewer's cursor falls behind retention | test_resume.py: test_case_21 |
| 22 | text with odd line ends is torn | test_connections.py: test_case_22; ../broker/test_sse.py: test_an_items_text_survives_the_wire_as_one_line |
| 23 | whoever joins a long run is sent a frame for each of its tokens | test_slow.py: test_case_23; ../broker/test_compact.py: test_ |
| 24 | a resume inside of what a compacted replay joined doubles text, or drops it | test_resume.py: test_case_24; ../broker/test_compact.py: test_a_cut_in_every_possible_place_neither_doubles_nor_loses |
| 26 | a failed agent counts as a success, its text is lost, or its tools run on | test_hermes_ends.py: test_case_26; ../e2e/test_hermes_kills_019.py: test_; ../e2e/test_hermes_kills_022.py: test_ |
| 27 | a prompt is taken for a flag, or for a shell's words | test_hermes_lines.py: test_case_27; ../e2e/test_hermes_real.py: test_a_prompt_reaches_the_model_unchanged |
| 28 | a command's output is torn, doubled, or without bound | test_hermes_lines.py: test_case_28; ../workers/test_output.py: test_any_split_of_the_bytes_gives_the_same_items |
"""  # noqa: E501
