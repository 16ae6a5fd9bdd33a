"""Export of surveys and traces as the HeadVis data tree that Neuronpedia documents."""
