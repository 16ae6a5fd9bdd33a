/** What the first heatmap does not need: the other views and the export dialog. A served page loads it when idle or on first use. */

import type { Later } from "./panels/view_context";
import { openExportDialog } from "./export/export_dialog";
import { createEvictionPanel } from "./panels/eviction_panel";
import { createHeadsView } from "./heads/heads_view";
import { PictureView } from "./picture/picture_view";
import { TextView } from "./text/text_view";

export const later: Later = {
  createTextView: (context) => new TextView(context),
  createHeadsView,
  createPictureView: (context) => new PictureView(context),
  createEvictionPanel,
  openExportDialog,
};
