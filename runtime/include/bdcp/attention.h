// bdcp: attention over packed documents. Start here.
//
//   doc_layout.h    the documents of one packed sequence
//   runtime.h       Runtime, Step, forward and backward
//   communicator.h  the ranks that share a sequence
//   policy.h        how paths and backends are chosen
//   batch.h         padding and sharding a batch over ranks
//   decision.h      what a step decided, and every downgrade
//   error.h         the one exception type
//   types.h         dtypes, streams, tensor views
//   version.h       the library's version
#pragma once

#include "bdcp/batch.h"
#include "bdcp/communicator.h"
#include "bdcp/decision.h"
#include "bdcp/doc_layout.h"
#include "bdcp/error.h"
#include "bdcp/policy.h"
#include "bdcp/runtime.h"
#include "bdcp/types.h"
#include "bdcp/version.h"
